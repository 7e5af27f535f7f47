"""Questions about causes and effects, answered from the tables, and pictures of the answers."""
