"""The methods of integration by name, and why one is taken."""

DUAL = "dual"  # of the orbit alone: see `dual`
METHODS = ("tsit5", "dopri8", "kvaerno5", DUAL)
AUTO_METHOD, STIFF_METHOD = "tsit5", "kvaerno5"
IMPLICIT = ("kvaerno5",)  # with dense systems to solve
ASKED = "asked for"
