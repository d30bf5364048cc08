"""TD(Δ) inside other libraries: one module per library, each with an extra of the same name.

Nothing here is imported by the rest of the package, so that it works without those libraries.
"""
