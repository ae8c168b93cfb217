"""Was what the clients of one object saw possible at all?"""
