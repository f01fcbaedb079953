"""port: write a torch module as Flax source code, and prove that both compute the same.

    torch module ─► reading: what ran ─► translating, by rules ─► writing: the file ─► proof: compare
    torch optimizer, scheduler ─► training: their lines, and the proof of those lines

`layout` chooses the axes of images, `changes` detects side effects that a comparison misses, `record_files`
writes the record and its test. The proof imports the written file and trusts nothing about its origin.
README.md has the map of the folder and one class before and after.
"""
