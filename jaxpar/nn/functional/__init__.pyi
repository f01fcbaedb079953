# Imports only, by name.
