"""Table diagnosis: `facts` gathers facts, and pure `rules` check them."""
