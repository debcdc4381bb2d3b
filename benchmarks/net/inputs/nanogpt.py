# a small run
dataset = "shakespeare_char"
block_size = 64  # context
n_layer = 3
n_head = 6
n_embd = 4 * n_head
dropout = 0.2
bias = True
