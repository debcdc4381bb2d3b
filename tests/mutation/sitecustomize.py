"""The mutated module, in a child and in every Python process that its tests start.

Python imports a `sitecustomize` that lies on its path when it starts. This one imports nothing that
Python has not loaded by then: tests ask what a command loads.
"""

import marshal
import os
import sys

KEY = "METACOUNT_MUTANT"  # in the environment: the file with a module's name, path and code


class Importer:
    """Imports one module from code that is in no file."""

    def __init__(self, name, path, code):
        self.name, self.path, self.code = name, path, code

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        package = self.path.endswith("__init__.py")
        spec = type(sys.__spec__)(name, self, origin=self.path, is_package=package)
        spec.has_location = True
        if package:
            spec.submodule_search_locations = [os.path.dirname(self.path)]
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(self.code, module.__dict__)


if KEY in os.environ:
    with open(os.environ[KEY], "rb") as file:
        sys.meta_path.insert(0, Importer(*marshal.load(file)))
