"""`jaxpar devices` (`table`) and `jaxpar env`; neither needs a GPU or ends with a traceback."""
