"""Which rows form the next batch?"""
