"""Order: whose turn is it among flows?"""
