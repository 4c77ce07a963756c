"""Data sets for captures: pictures (`images`) and text (`text`), read from the user's folders."""
