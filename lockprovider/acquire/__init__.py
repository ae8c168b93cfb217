"""Getting the lock: who asks the store, how often, and who of one process is next.

    polling        when to look at the record again; pure
    process_queue  the clients of one process, of which one asks for all
    fifo           threads in the order in which they came
    acquire        one acquisition, from the wish to the lease

May import: lease, record and below. NOT promised: an order among processes; only that nobody waits for long.
"""
