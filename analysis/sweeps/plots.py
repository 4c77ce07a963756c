def figures(s): return {}
