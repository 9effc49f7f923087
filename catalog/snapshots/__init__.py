"""Snapshots: the extracted records of one package version, in one file.

write      extracted records → file, built beside its place and moved there
snapshot   an opened file: records, full-text search, the matcher's part
shelf      the folder of all of them, its manifest, bundles
"""
