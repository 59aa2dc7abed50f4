"""Encryption of connections and identity of peers: certificates, names and roles.

`settings` is what a person configures, `identity` decides which roles a certificate's name has (pure), `certificates` holds the files of one process
and rereads them when they change, `permits` says which role each procedure needs, and `authority` issues certificates for development.
"""
