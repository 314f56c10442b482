"""What an algorithm of federated learning is, and the table of them: objectives of clients, rules of servers."""
