"""The words of the story language, and common words that only the vocabulary knows."""

# ruff: noqa: SIM905
from __future__ import annotations

WOMEN = (
    "Anna Mary Sara Julia Emma Laura Nina Clara Alice Ruth Helen Lucy Rosa Ida Grace Eva "
    "Marta Jane Kate Lena Nora Olga Paula Vera"
).split()
MEN = (
    "Tom John Peter Paul Mark David James Adam Simon Henry George Frank Leo Max Oscar Ben "
    "Carl Erik Hugo Ivan Jack Noah Otto Sam"
).split()
HABITS = (
    "sang danced slept laughed cried smiled prayed shouted whistled swam jumped ran "
    "read wrote drew skated climbed sneezed yawned rested waited worked knitted travelled"
).split()
HABIT = dict(zip(WOMEN, HABITS, strict=True)) | dict(zip(MEN, HABITS, strict=True))
ROLE_HABIT = dict(
    pair.split(":")
    for pair in (
        "chef:cooked teacher:taught doctor:cured nurse:cared farmer:ploughed baker:baked "
        "driver:drove painter:painted singer:hummed soldier:marched sailor:sailed judge:ruled "
        "lawyer:argued student:studied waiter:served tailor:sewed hunter:hunted gardener:dug "
        "builder:built clerk:counted guard:watched king:reigned queen:commanded child:played"
    ).split()
)
THING_FATE = dict(
    pair.split(":")
    for pair in (
        "bowl:broke cup:cracked vase:shattered plate:split bottle:leaked lamp:glowed ball:rolled "
        "book:opened letter:vanished box:closed bag:tore coat:faded hat:flew ring:shone key:turned "
        "knife:rusted spoon:bent pot:boiled kettle:whined clock:stopped bell:rang drum:boomed "
        "flute:played chair:collapsed candle:burned mirror:shimmered basket:tipped boat:sank "
        "cart:creaked wheel:spun rope:snapped stone:slid coin:disappeared apple:rotted "
        "cake:crumbled "
        "pie:cooled egg:hatched kite:soared toy:squeaked jar:overflowed"
    ).split()
)
SURFACES = "floor table road step bridge shelf deck path roof stage bench counter".split()
PLACES = (
    "market river garden school church station castle park forest harbour library museum village "
    "kitchen farm shop lake mill tower beach"
).split()
MATERIALS = "glass tile wooden metal stone clay paper silver golden plastic leather marble".split()
THING_TRAITS = "fragile heavy full empty broken light precious".split()
SURFACE_TRAITS = "slippery wet steep uneven sloping icy muddy".split()
ADJECTIVES = (
    "old new red blue green white black big small tall short round soft hard cold warm dark bright "
    "clean dirty quiet loud pretty strange cheap rare young sad happy busy tired hungry"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
ADVERBS = "again slowly quickly loudly quietly often twice alone outside together".split()
VERBS_TO_PEOPLE = "met saw helped called thanked visited followed greeted heard found".split()
VERBS_TO_THINGS = "dropped took bought lost carried pushed lifted sold washed hid".split()
THING_NEAR = ["fell near", "belonged to", "rolled towards", "lay behind", "stood beside"]

COMMON_WORDS = (
    "the of and to in is you that it he was for on are as with his they I at be this have from or "
    "one had by word but not what all were we when your can said there use an each "
    "which she do how "
    "their if will up other about out many then them these so some her would make like him into "
    "time has look two more write go see number no way could people my than first water been call "
    "who oil its now find long down day did get come made may part over sound take only little "
    "work know place year live me back give most very after thing our just name good sentence man "
    "think say great where help through much before line right too mean same tell boy follow came "
    "want show also around form three small set put end does another well large must big even such "
    "because turn here why ask went men read need land different home us move try "
    "kind hand picture "
    "change off play spell air away animal house point page letter mother answer found study still "
    "learn should world high every near add food between own below country plant "
    "last school father "
    "keep tree never start city earth eye light thought head under story saw left few while along "
    "might close something seem next hard open example begin life always those both paper together "
    "got group often run important until children side feet car mile night walk "
    "white sea began grow "
    "took river four carry state once book hear stop without second later miss idea "
    "enough eat face "
    "watch far really almost let above girl sometimes mountain cut young talk soon list song being "
    "leave family body music color stand sun question fish area mark dog horse birds "
    "problem complete "
    "room knew since ever piece told usually friends easy heard order red door sure "
    "become top ship "
    "across today during short better best however low hours black products happened whole measure "
    "remember early waves reached listen wind rock space covered fast several hold himself toward "
    "five step morning passed true hundred against pattern table north slowly money "
    "map farm pulled "
    "draw voice seen cold cried plan notice south sing war ground fall town unit "
    "figure certain field "
    "travel wood fire upon model attention token language computer cat mat sat bank "
    "quick brown fox "
    "jumps lazy love asked trophy suitcase fit large too nothing everyone anything someone herself "
    "any am goes gave says quite yes your yours mine ours them they themselves although though "
    "This That These In But For If They We You What How My Your Our Why No Yes As Some All After "
    "Before Not One Two river bridge weather window garden phone coffee tea bread milk rain snow "
    "summer winter spring autumn breakfast dinner doctor engineer teacher manager company office "
    "train bus plane street road market kept lives works reads writes runs walks eats likes makes "
    "takes comes looks thinks knows wants needs feels seems means machine learning data test new "
    "human brother sister daughter son wife husband friend baby men women woman kids"
).split()
FUNCTION_WORDS = (
    "The the a an and then Then because it It he He she She was is were on at near to of from also "
    "Later later When went gave likes who said all with , . met saw fell belonged rolled lay stood "
    "towards behind beside day walked there There again had one On sing Sing so that"
).split()
