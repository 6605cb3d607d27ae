"""Consumers that other distributions bring along; status bit 7.

contract   what a plug-in must look like, and what it gets
plugins    loading and attaching those that are installed
worker     the thread in which one of them does its work
"""
