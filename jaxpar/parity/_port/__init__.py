"""port: a torch module becomes Flax source code.

    torch module ─► watching: what ran ─► writing: its classes, translated ─► the file ─► proof: compare

`source` is the text and its tree, `scope` what names mean. `words`, then `deciding`, `calls`, `pairs`,
`stopping`, `assignments`, `branches`, `initial` and `statements` exchange words by the tables in `rules`,
with `precedence` where a word became an operation and `aliases` where a write is seen elsewhere.
`definitions` are classes and functions, `building` says how the module was made, `layout` in which axes
images come, `counting` how long both files are. The proof imports the written file and trusts none of
them; `changes` looks at what a comparison does not.

    torch optimizer, scheduler ─► training ─► optimizer, scheduler: their lines ─► steps: the proof

`dims` says which axes of a leaf an optimizer of matrices means, `functions` what a scheduler calls.
"""
