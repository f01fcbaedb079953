def write(a, c): return ""
def good(a): return True
