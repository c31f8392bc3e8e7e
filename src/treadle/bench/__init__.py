"""How fast it is here: treadle and bare SQL on tables of their own, each in a process of its own."""
