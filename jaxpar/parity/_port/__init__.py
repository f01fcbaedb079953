"""port: a torch module becomes Flax source code.

    torch module ─► reading: what ran ─► translating, by rules ─► writing: the file ─► proof: compare
    torch optimizer, scheduler ─► training: their lines, and the proof of them

`layout` says in which axes images come, `changes` looks at what a comparison does not, `kept` writes the
record and the test. The proof imports the written file and trusts nothing of what wrote it.
"""
