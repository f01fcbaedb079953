"""Reading: the user's source, and what it did while the module was made and called.

`source` holds the text and its tree, `scope` resolves names, `watching` records every expression's values.
`aliases` finds writes that a second name observes, `effects` functions that change an argument, `building`
the arguments that the module was made with, `runtime` a library's code around its models, `counting` the
length of both files.
"""
