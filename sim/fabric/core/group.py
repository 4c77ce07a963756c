"""Groups: the messages of one transport from one host to another in one class, at the sender's NIC.

Such messages share a pace (`PAIR_NEXT`). Were each of them listed by itself, a pair of a hundred messages would have
all of them woken for every packet, to find that another one has just sent. So their group is listed, as one flow: when
its turn comes and the pair may send, its oldest message that has something to send does; a message that has begun ends
before the next one takes bandwidth from it. The NIC serves the groups of the best class first.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import S_BACK, S_BEHIND, S_FRONT, S_LISTED, S_ORDER


@njit
def join_group(M, g, f):
    """A message that may have something to send takes its place in its group, by age (its number)."""
    M[f + S_BEHIND] = 0
    front = M[g + S_FRONT]
    if front == 0:
        M[g + S_FRONT] = f
        M[g + S_BACK] = f
        return
    age = M[f + S_ORDER]
    back = M[g + S_BACK]
    if M[back + S_ORDER] < age:
        M[back + S_BEHIND] = f
        M[g + S_BACK] = f
        return
    if age < M[front + S_ORDER]:
        M[f + S_BEHIND] = front
        M[g + S_FRONT] = f
        return
    while M[M[front + S_BEHIND] + S_ORDER] < age:
        front = M[front + S_BEHIND]
    M[f + S_BEHIND] = M[front + S_BEHIND]
    M[front + S_BEHIND] = f


@njit
def leave_group(M, g, f):
    """The oldest message of a group has nothing to send. Returns the next one, 0 for none."""
    behind = M[f + S_BEHIND]
    M[f + S_BEHIND] = 0
    M[f + S_LISTED] = 0
    M[g + S_FRONT] = behind
    return behind
