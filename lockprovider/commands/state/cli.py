"""`lockprovider state`: its commands, and what they share."""

from __future__ import annotations

import argparse

from lockprovider.commands.place import CODES, Commands
from lockprovider.commands.state import documents, terraform, tflock

_EXAMPLES = """examples:
  lockprovider state get s3://bucket/pipelines/orders.json
  echo '{"day": "2026-11-22"}' | lockprovider state put s3://bucket/pipelines/orders.json --expected 41
  lockprovider state edit s3://bucket/pipelines/orders.json --reason 'migration 12'
  lockprovider state history s3://bucket/pipelines/orders.json
  lockprovider state diff s3://bucket/pipelines/orders.json 41 43
  lockprovider state run s3://bucket/infra/network.json -- terraform apply
  lockprovider state lock s3://bucket/infra/network.tfstate --style tflock -- ./migrate.sh"""


def add(commands: Commands) -> None:
    """Register `state` and all its commands."""
    text = "One document that many read, change and edit, with a history."
    parent = commands.add_parser(
        "state",
        help=text,
        description=text,
        epilog=f"{_EXAMPLES}\n\n{CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    state = parent.add_subparsers(required=True, metavar="COMMAND")
    documents.add(state)
    terraform.add(state)
    tflock.add(state)
