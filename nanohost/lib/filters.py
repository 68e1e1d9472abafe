"""Filters that every template has: how moments and numbers are shown."""

from django import template

from nanohost.lib import moments

register = template.Library()
for _each in (moments.when, moments.exactly, moments.number):
    register.filter(_each)
