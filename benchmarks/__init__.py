"""Benchmarks that anyone can run; `README.md` says what each shows."""
