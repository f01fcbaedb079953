"""port: a torch module becomes Flax source code.

    torch module ─► watching: what ran ─► writing: its classes, translated ─► the file ─► proof: compare

`source` is the text and its tree, `scope` what names mean; `words`, `calls`, `assignments` and `statements`
exchange words by the tables in `rules`, `definitions` are classes and functions, `building` says how the
module was made, `counting` how long both files are. The proof imports the written file and trusts none of
them.

    torch optimizer, scheduler ─► training ─► optimizer, scheduler: their lines ─► steps: the proof

`dims` says which axes of a leaf an optimizer of matrices means, `functions` what a scheduler calls.
"""
