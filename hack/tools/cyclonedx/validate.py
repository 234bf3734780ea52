"""Ends with an error, and prints why, unless each of the files named is an SBOM by CycloneDX's JSON schema 1.6."""
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

invalid = 0
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(file.read())
    if problem:
        print(f"{path}: {problem}", file=sys.stderr)
        invalid += 1
sys.exit(invalid != 0 or len(sys.argv) < 2)
