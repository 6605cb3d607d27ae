"""Commands that look at the tree or set it: `utracefs status`, `doctor`, `cat`, `enable`, ..."""
