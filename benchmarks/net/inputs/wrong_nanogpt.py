n_layer = int(input())
