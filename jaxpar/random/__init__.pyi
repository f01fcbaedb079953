from ._generator import Generator as Generator
