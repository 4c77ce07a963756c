import numpy as np
from emu.agent.script import Script, part_of
class C:
    def __init__(s,part): s.part=part; s.buf={}
    def outgoing(s,m): return memoryview(bytes(s.part.rows[m].nbytes))
    def incoming(s,m): 
        s.buf[m]=bytearray(s.part.rows[m].nbytes); return memoryview(s.buf[m])
    def arrived(s,a): s.buf.pop(a.message,None)
    def settled(s,m): pass
    def report(s): return None
def make_parts(plan,node,loop,send):
    part=part_of(plan.program,node)
    lat=plan.software_latency_ps if plan.clock=="virtual" else 0
    return Script(part,loop,send,lat), C(part)
