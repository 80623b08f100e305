"""What a picker is asked, by the part of the protocol; each module registers its cases."""
