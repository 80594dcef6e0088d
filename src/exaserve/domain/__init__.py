"""The vocabulary of ExaServe: frozen values, ids and the one error tree. Imports nothing of ours."""
