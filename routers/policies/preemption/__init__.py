"""Which work that was sent gives its place to what is more urgent?"""
