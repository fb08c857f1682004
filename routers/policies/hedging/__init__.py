"""Hedging: after how long is a batch, or a request that generates, asked of another replica too?"""
