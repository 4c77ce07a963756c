"""Commands about clusters: collective tests on described ones, and the study of measured ones."""
