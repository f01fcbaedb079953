"""port: write a torch module as Flax source code, and prove that both compute the same.

torch module ─► reading: what ran ─► translating, by rules ─► writing: the file ─► proof: compare
torch optimizer, scheduler ─► training: their lines, and the proof of those lines
"""
