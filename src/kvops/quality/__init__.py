"""How much of its quality a model keeps in each format: texts and needles, their scores, and the record of them."""
