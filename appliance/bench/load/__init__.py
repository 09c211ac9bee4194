"""Load for measuring proxies: a scripted engine, clients, and other people's proxies to compare with.

Nothing here is started outside a bench or a test.
"""
