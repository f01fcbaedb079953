"""Reading: the user's own text, and what it did when the module was made and called.

`source` is the text and its tree, `scope` what names mean, `watching` what every expression was while it ran.
`aliases` are writes that another name sees, `effects` functions that change an argument, `building` the
arguments that the module was made with, `runtime` what a library does around its models, `counting` how long
both files are.
"""
