"""Commands that read or change the tree: `utracefs status`, `doctor`, `cat`, `enable`, ..."""
