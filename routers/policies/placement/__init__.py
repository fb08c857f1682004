"""Which replica is asked first?"""
