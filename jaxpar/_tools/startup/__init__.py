"""`jaxpar profile --startup`: where the seconds before the end of a script's first steps go.

`clock` sums the seconds of nested phases, `watching` enters the phases while a script runs, and `report` is
the table.
"""
