"""Secure aggregation: the server learns the sum of the clients' statistics, and no client's own.

A protocol without input and output: bytes in, bytes out, so any transport carries it. Both sides agree on ``Settings``.
Four times the server sends a message to each client and takes the answers of those who are still there:

    messages = server.start()
    while messages:
        for answer in exchange(messages):  # your transport; clients that do not answer in time are left out
            server.receive(answer)
        messages = server.advance()
    fixed = ccvr.calibrate(model, server.total)

and each client, made with its own statistics, answers with ``client.answer(message)``.

The protocol is that of Bonawitz et al. 2017, with neighbours as in Bell et al. 2020. Every client adds its own mask and
one with each neighbour. The latter cancel in the sum. Neighbours hold shares of the secrets behind the masks: these
open the own masks of clients in the sum, and the other masks of clients that dropped out.

It protects against a server that follows the protocol and reads everything, together with up to threshold - 1 clients
that tell it all they know (in a graph of neighbours: ``max_colluders`` at random places).

A server that does not follow the protocol:

- Clients refuse lists that name fewer clients than threshold, or fewer neighbours than open a secret.
- It does not get both secrets of a client: more than half of the neighbours must give a share of each, and
  a neighbour gives one of the two, once. Colluders that give both weaken this.
- Clients notice different lists of keys: shares that were sealed under one list do not open under another.
- Replayed, swapped, cut and altered messages do not open.
- Clients do **not** notice that each is told another list of who is left. The server may so open sums of fewer clients
  than threshold.
- Clients do **not** notice keys that the server made up: nobody vouches for keys. Nor does anybody notice who
  writes in the name of the server, or in the name of a client before its first message. The transport must
  authenticate both.

The server does not see wrong numbers under masks: one client can spoil the sum.
"""

from ccvr.privacy.client import Client
from ccvr.privacy.server import Messages, Server
from ccvr.privacy.settings import Settings

__all__ = ["Client", "Messages", "Server", "Settings"]
