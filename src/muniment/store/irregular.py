"""Irregular verbs of English, which no stemmer knows: forms, and what they are forms of. Data.

Left out are forms that more often are another word: `left`, `saw`, `ground`, `bit`, `bound`, `led`, `rose`.
"""

from __future__ import annotations

from typing import Final

_VERBS: Final = """
arise arose arisen; awake awoke awoken; beat beaten; become became; begin began begun; bend bent; bite
bitten; bleed bled; blow blew blown; break broke broken; bring brought; build built; burn burnt; buy
bought; catch caught; choose chose chosen; cling clung; come came; creep crept; deal dealt; dig dug; draw
drew drawn; dream dreamt; drink drank drunk; drive drove driven; eat ate eaten; fall fell fallen; feed
fed; feel felt; fight fought; find found; flee fled; fly flew flown; forbid forbade forbidden; forget
forgot forgotten; forgive forgave forgiven; freeze froze frozen; get got gotten; give gave given; go went
gone; grow grew grown; hang hung; hear heard; hide hidden; hold held; keep kept; kneel knelt; know knew
known; learn learnt; lend lent; lose lost; make made; mean meant; meet met; mistake mistook mistaken;
overcome overcame; oversee oversaw overseen; overtake overtook overtaken; pay paid; prove proven; ride
rode ridden; ring rang rung; rise risen; run ran; say said; see seen; seek sought; sell sold; send sent;
sew sewn; shake shook shaken; shine shone; show shown; shrink shrank shrunk; sing sang sung; sink sank
sunk; sit sat; sleep slept; slide slid; speak spoke spoken; spend spent; spin spun; stand stood; steal
stole stolen; stick stuck; strike struck stricken; strive strove striven; swear swore sworn;
sweep swept; swell swollen; swim swam swum; swing swung; take took taken; teach taught; tear tore torn;
tell told; think thought; throw threw thrown; undergo underwent undergone; understand understood;
undertake undertook undertaken; undo undid undone; uphold upheld; wake woke woken; wear wore worn; weave
wove woven; weep wept; win won; withdraw withdrew withdrawn; withhold withheld; withstand withstood; write
wrote written
"""
IRREGULAR: Final = {
    form: verb for verb, *forms in (line.split() for line in _VERBS.split(";")) for form in forms
}
