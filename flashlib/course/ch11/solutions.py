"""Reference solutions of chapter 11."""


def most_stages(Br, Bc, d):
    """11.1: what half an SM can hold, in rows of 2·d bytes, less Q's, in pairs of K and V tiles."""
    return max(0, ((228 * 1024 // 2 - 1024) // (2 * d) - Br) // (2 * Bc))


def time_in_waves(programs, sms, per_sm, program_s):
    """11.2: whole waves, and the share of their room that is work."""
    slots = sms * per_sm
    waves = -(-programs // slots)
    return waves * program_s, programs / (waves * slots)


def where_bytes_come_from(heads, N, d, Br):
    """11.3: K and V once per row tile from L2, every tensor once from DRAM."""
    tensor = heads * N * d * 2
    return tensor * (1 + 2 * -(-N // Br)), 3 * tensor


def my_tile():
    """11.4: two programs per SM: 81,920 B and the system's 1,024 B fit twice into 164 KiB."""
    return {"Br": 64, "Bc": 64, "warps": 4, "stages": 2,
            "shared_bytes": 81_920, "registers": 152, "per_sm": 2}
