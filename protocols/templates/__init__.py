"""Templates of user-defined components, which `gradwire new` copies.

Each kind has a module with a complete component, its test (`*_test.txt`) and a scenario (`*.toml`). The names of the
copies replace those of the templates, such as `FixedWindow` and `fixed_window` (`gradwire.testing.skeleton`). The
templates are not components themselves: no scenario can name them.
"""
