"""The live page: runs that are followed in a browser while their files grow."""
