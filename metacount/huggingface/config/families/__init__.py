"""The model types of transformers, a row each, in files of related ones; the record says which is
where.
"""
