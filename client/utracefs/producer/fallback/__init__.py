"""Where the compiled modules cannot be used: the check, and their replacement."""
