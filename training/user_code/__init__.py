"""User-defined models, data sets and reducers, and checks of their return values."""
