"""Word lists of the generated training text, written for it. Used by data.py and its parts; holds nothing else."""

NAMES = '''Ada Ben Cara Dan Ella Finn Gina Hugo Iris Jack Kira Leo Mia Noah Olga Paul Quinn Rosa Sam Tara Umar Vera
Will Xena Yara Zoe Amir Bella Carlos Dina Emil Farah Greta Hassan Ivan Julia Karl Lina Marco Nina Omar Petra Rafael
Sofia Tom Ursula Victor Wanda Yusuf Zara Alice Boris Chloe David Elena Felix Grace Henry Ines Jonas Kate Lucas Maria
Nora Oscar Paula Robert Sarah Theo Violet'''.split()

ITEMS = '''apple book pencil marble stamp coin shell card button ticket flower cookie sticker bottle candle balloon
lemon egg muffin plate cup spoon stone feather key brush ribbon magnet puzzle toy lamp basket scarf hat glove sock
towel pillow nail screw brick tile rope magazine poster photo letter postcard notebook crayon marker eraser orange
peach plum pear melon carrot onion tomato potato bean sandwich pie cake donut pretzel'''.split()

PLURALS = {
    'brush': 'brushes',
    'scarf': 'scarves',
    'box': 'boxes',
    'match': 'matches',
    'peach': 'peaches',
    'tomato': 'tomatoes',
    'potato': 'potatoes',
    'sandwich': 'sandwiches',
    'shelf': 'shelves',
    'glass': 'glasses',
    'bench': 'benches',
    'bus': 'buses',
    'class': 'classes',
    'dish': 'dishes',
    'pouch': 'pouches',
}

CONTAINERS = 'box bag basket shelf tray crate jar drawer carton pouch row pack case bucket folder table'.split()

GROUPS = 'friends children students neighbors guests teams players cousins workers classes visitors pupils'.split()

ADJECTIVES = '''amber azure bold brave bright calm clever cold cosmic crimson dark dusty eager early fancy fast
fierce frozen gentle giant golden grand green happy hidden hollow humble icy jolly kind late lazy light little
lively lone loud lucky mellow misty modern narrow noble old pale patient plain proud purple quick quiet rapid red
rough round royal rusty sharp shiny silent silver simple sleepy slow small smart soft solar solid sour spicy steady
stormy strong sunny sweet swift tall tiny tough violet warm wide wild windy wise young'''.split()

NOUNS = '''anchor arrow badger beacon bear bell bird boat bridge brook butterfly cabin canyon castle cat cedar cliff
cloud comet coral crane creek crow crystal deer desert dolphin dragon eagle ember falcon feather fern field fire
flame forest fox garden gate glacier harbor hawk heron hill horse island jaguar lake lantern leaf lion lizard maple
meadow mesa mirror moon moth mountain oak ocean orchid otter owl palm panther path peak pebble phoenix pine planet
pond quartz rabbit raven reef ridge river robin rocket rose salmon sand shadow shark ship sky snow sparrow spider
spring spruce star stone storm stream summit sun swan temple thorn thunder tiger torch tower trail tree tulip turtle
valley wave whale willow wind wolf'''.split()

CITIES = '''Paris London Berlin Madrid Rome Vienna Prague Oslo Dublin Lisbon Athens Warsaw Zurich Geneva Milan
Naples Boston Chicago Denver Dallas Seattle Austin Toronto Montreal Lima Bogota Santiago Cairo Nairobi Lagos Tunis
Delhi Mumbai Tokyo Osaka Kyoto Seoul Taipei Hanoi Manila Sydney Perth Auckland Helsinki Tallinn Riga Krakow Porto
Seville Lyon'''.split()

VERBS = '''watches follows carries finds remembers draws paints visits protects cleans repairs builds studies
describes measures opens closes moves lifts pushes pulls sells buys keeps hides shows feeds calls hears
sees'''.split()

PLACES = '''by the river|in the garden|near the harbor|on the hill|under the bridge|in the old town
behind the house|at the market|along the road|in the library|at the station|on the beach
in the forest|across the valley|inside the tower|at the edge of the village'''.replace(
    '\n', '|'
).split('|')

TIMES = '''in the morning|in the evening|at night|before lunch|after dinner|every day|on Monday|on Friday
in winter|in summer|at noon|once a week|at sunrise|during the storm|last year'''.replace('\n', '|').split('|')

SENSES = '''bright cold deep loud quiet soft sweet warm heavy light slow strong gentle strange
simple wide clear dark fresh smooth'''.split()


def plural(noun):
    if noun in PLURALS:
        return PLURALS[noun]
    if noun.endswith('y') and noun[-2] not in 'aeiou':
        return noun[:-1] + 'ies'
    return noun + 's'


def counted(number, noun):
    return f'{number} {noun if number == 1 else plural(noun)}'
